"""Metrics of finished episodes, and mean, SD and confidence interval of samples.

A metric has the same name everywhere: its path in the nested result, joined with `/`.
"""
