// Shared by the backends for trained models: opening a framework's library when the server starts.
#ifndef RANKLINE_TRITON_ENGINE_H_
#define RANKLINE_TRITON_ENGINE_H_

#include <map>
#include <string>

#include "triton/backend.h"

namespace rankline {

// Opens the library at the path in the option `library`, or else the library `name`.
//
// alone: whether the library resolves symbols to its own before the server's. This is necessary if both define the same
// symbols; libraries not built for it fail in classes of the C++ standard library.
//
// Throws ArtifactError if the library cannot be opened.
void* OpenLibrary(const std::map<std::string, std::string>& options, const char* name, bool alone);

// Returns a function of the library. Throws ArtifactError if there is none of that name.
void* FunctionOf(void* library, const char* name);

// Compares the tensors in the config with the model's tensors (name → type).
//
// Throws ArtifactError if they differ.
void CheckTensors(const std::string& model, const char* side, const std::vector<TensorSpec>& declared,
                  const std::map<std::string, std::string>& found, bool all_of_them);

// Throws RequestError if an input is missing, or holds strings, which the frameworks are not given.
void CheckGiven(const std::vector<Tensor>& given, const std::vector<TensorSpec>& specs);

// Returns the name of a framework's type, from its numbers in the order of Dtype.
template <size_t N>
std::string TypeName(const int (&numbers)[N], int number) {
  for (size_t i = 0; i < N; ++i) {
    if (numbers[i] == number) return NameOf(static_cast<Dtype>(i));
  }
  return "type " + std::to_string(number);
}

// Returns the first line of a framework's message.
std::string FirstLine(const std::string& text);

}  // namespace rankline

#endif  // RANKLINE_TRITON_ENGINE_H_
