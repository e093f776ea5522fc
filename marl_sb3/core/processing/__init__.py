"""Processing of a policy's observations, rewards and actions, as its settings say; `processing.ORDER` is the order.

`Processing` holds the processors of one policy and their running statistics. `process_rows` applies it to the rows of a
policy in training and in evaluations, step by step; `predict` passes the memory of an agent in and out.
"""
