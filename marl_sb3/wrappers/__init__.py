"""What is around one `ParallelEnv`: checks of its interface and values, its observations in another form, films."""
