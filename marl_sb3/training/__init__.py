"""The joint training: the public class, the loop of collecting and updating, counters, results, checkpoints' parts."""
