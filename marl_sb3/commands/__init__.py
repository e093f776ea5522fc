"""The commands, a module each: options, what is called, what is printed. `cli.COMMANDS` lists them."""
