"""What a layout of workers carries. Pure."""
