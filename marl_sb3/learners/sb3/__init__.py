"""The only room that knows SB3's private members: a new version of SB3 means one folder to look at."""
