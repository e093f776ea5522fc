"""The state of a training as plain data and arrays: parts that list their fields, checked before they are set."""
