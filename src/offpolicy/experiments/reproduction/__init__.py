"""`offpolicy reproduce`: a recipe names a study and its lines; runner, statistics and tables are the same for all."""
