"""The colours of every picture."""

# Okabe and Ito's colours: told apart by colour-blind readers, and different enough in grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
PREFILL, DECODE = COLOURS[1], COLOURS[4]  # of the two phases
EMPTY, LINE, INK = "#F2F2F2", "#8A8A8A", "#222222"
