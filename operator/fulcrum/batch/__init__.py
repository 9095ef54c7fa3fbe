"""The batch process: keeps files, and has the lines of batches answered by the gateways of its cluster."""
