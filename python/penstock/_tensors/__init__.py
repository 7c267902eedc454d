"""Files of tensors: their sources, headers and parts, reads into arrays of any library, streams, ranks and existing tensors as targets."""
