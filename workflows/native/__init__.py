"""The plan's C++ sources, and the build of all C++ code in the package."""
