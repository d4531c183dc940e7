import os
import sys

# Before torch is imported, for this process and those that it starts: with as many processes as cores, the threads that
# wait for each other in a tiny network's operations spent up to twenty times its time on spinning.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Where nobody keeps bytecode, each of some two hundred processes compiles the program again, and each worker all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
