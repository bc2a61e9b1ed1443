"""What two topics that nobody has described yet hold, and the pipeline file that would pair them."""
