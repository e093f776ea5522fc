"""The joint training: the public class, the training loop, counters, results, the parts of a checkpoint."""
