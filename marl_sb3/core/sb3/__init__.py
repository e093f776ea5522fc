"""The only folder that uses SB3's private members: for a new version of SB3, check this folder."""
