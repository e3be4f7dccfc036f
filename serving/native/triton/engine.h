// What the backends for trained models share: a framework's library, opened when the server starts.
#ifndef RANKLINE_TRITON_ENGINE_H_
#define RANKLINE_TRITON_ENGINE_H_

#include <map>
#include <string>

#include "triton/backend.h"

namespace rankline {

// Opens the library that the option `library` names, or that the loader finds by this name.
//
// alone: it takes its own symbols before the server's, which it must where both have the same; what is not made for
// that fails in C++'s own classes.
//
// Throws ArtifactError: it cannot be opened.
void* OpenLibrary(const std::map<std::string, std::string>& options, const char* name, bool alone);

// A function of the library. Throws ArtifactError: it has none of that name.
void* FunctionOf(void* library, const char* name);

// Compares the tensors of the config with those that a model has: name → type.
//
// Throws ArtifactError: they differ.
void CheckTensors(const std::string& model, const char* side, const std::vector<TensorSpec>& declared,
                  const std::map<std::string, std::string>& found, bool all_of_them);

// The first line of what a framework says.
std::string FirstLine(const std::string& text);

}  // namespace rankline

#endif  // RANKLINE_TRITON_ENGINE_H_
