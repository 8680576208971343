"""From diagnosis to decision: hypotheses of a recording, their test as a script, and the experiments that were made of them."""
