"""The lowest layer of the package: devices, errors, futures, files and memory. Imports the native module and nothing above."""

import time

package_seconds = -time.perf_counter()  # the time the import took, once it has ended; for PENSTOCK_LOG=summary
