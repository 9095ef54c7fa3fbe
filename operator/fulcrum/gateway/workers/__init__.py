"""What is known of the workers, and how it is kept up to date."""
