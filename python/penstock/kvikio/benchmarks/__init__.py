"""KvikIO's benchmarks, by the names and options that its documentation gives them: `python -m penstock.kvikio.benchmarks.single_node_io`.

They run on the first GPU through CuPy where both are there, and on NumPy arrays elsewhere, which the first lines of their output tell.
Penstock's own figures come from `penstock bench`.
"""
