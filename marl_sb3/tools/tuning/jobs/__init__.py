"""The trainings of a search: queues of trials and confirmations, and the worker processes that run them."""
