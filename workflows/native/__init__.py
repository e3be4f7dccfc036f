"""The plan in C++, and what compiles and finds the C++ of the whole package."""
