"""Before a layout is changed, the last minutes are played under each candidate. Pure: what was seen comes in."""
