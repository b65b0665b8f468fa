"""`python -m txlib.grading.sandbox`: tell Jupyter of the kernel `sealed`, and say how tight it is here.

A wheel brings the kernel along; an editable installation, as `make` does it, needs this.
"""

import sys

from jupyter_client.kernelspec import KernelSpecManager

from txlib.grading.sandbox import KERNELSPEC, probe

if __name__ == "__main__":
    KernelSpecManager().install_kernel_spec(str(KERNELSPEC), "sealed", prefix=sys.prefix)
    isolation = probe()
    print(f"The kernel `sealed` is installed; isolation here: {isolation.level}", *isolation.holes, sep="\n  ")
