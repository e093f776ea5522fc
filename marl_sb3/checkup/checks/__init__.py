"""The checks, by what they look at; `registry` lists them all."""
