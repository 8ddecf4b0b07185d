"""The stages of `experiments.accelerator`: one function each, whose rows are written one by one."""
