"""What plugs deltavc into other people's software, a module for each. None is imported before it is asked for."""
