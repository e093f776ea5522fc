"""What people see of a training: numbers in words, tables, a live view on terminals and in notebooks, plain lines."""
