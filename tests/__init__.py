import os

# Before torch is imported, for this process and those that it starts: with as many processes as cores, the threads that
# wait for each other in a tiny network's operations spent up to twenty times its time on spinning.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
