"""Features extractors by the names in `core/config/networks.py`: each is imported when a policy first names it.

An extractor with a method `arguments_for` is asked what it takes from the processing of a policy.
"""
