"""C++ sources of the plan, and the build script for all C++ code in the package."""
