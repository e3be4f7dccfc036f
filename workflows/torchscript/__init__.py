"""TorchScript files, checked before PyTorch loads them."""
