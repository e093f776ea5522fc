"""What learners keep of the agents' experience until they update."""
