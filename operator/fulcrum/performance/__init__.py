"""What a layout of workers makes of a load: waiting, attainment, goodput. Pure."""
