"""The policies that ours is compared with, one per file."""
