"""Limits of the house's figures: what is reached. Aims of issue 63 stand beside them."""

# Entries at the top of jaxspec/; modules that name a drafter or builder outside its own places.
MOST_ENTRIES, MOST_NAMERS, LEAST_ANNOTATED = 20, 3, 0.95
# 50.8 MiB before GRIFFIN's and TreeFlash's reference arrays, 1.0 MiB each, and what the papers' own
# forms brought; 54.5 before the records of published repositories and tiny models of Gemma 4 and
# MiMo; Qwen3.5's reference arrays are 2.1 MiB.
MOST_TRACKED_MIB, MOST_WHEEL_MIB = 57.0, 38.0
MOST_README_LINES, MOST_PAGE_WORDS = 111, 22_600
# Aims: 30 and 60. 33 and 105 at 5429668, 36 and 119 before TreeFlash's conditions.
MOST_ROOMS, MOST_VISITS = 37, 120
# Aim: 25. 39 at 5429668, and before a layer chose its feed-forward by its config.
LONGEST_CHAIN = 42
# Aims: 430 and 55,000. 657 and 74,160 at 5429668, 607 and 73,050 before the papers' own forms, 688
# and 83,030 before heads of several sizes, recurrent layers, and published repositories were read.
MOST_FILES, MOST_LINES = 695, 85_000
# Aims: 15 and 20.
MOST_FILES_IN_FOLDER, MOST_IMPORTS = 15, 20
# Aim: 1, the tuner's. 8 at 5429668.
MOST_STORES = 1
