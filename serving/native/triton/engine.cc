#include "triton/engine.h"

#include <dlfcn.h>

#include "triton/names.h"

namespace rankline {
void* OpenLibrary(const std::map<std::string, std::string>& options, const char* name, bool alone) {
  const auto found = options.find("library");
  const std::string path = found == options.end() ? name : found->second;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | (alone ? RTLD_DEEPBIND : 0));
  if (library == nullptr) throw ArtifactError(path + " cannot be opened (" + FirstLine(dlerror()) + ")");
  return library;
}

void* FunctionOf(void* library, const char* name) {
  void* function = dlsym(library, name);
  if (function == nullptr)
    throw ArtifactError(std::string("the library has no ") + name + ": it is from another release");
  return function;
}

void CheckTensors(const std::string& model, const char* side, const std::vector<TensorSpec>& declared,
                  const std::map<std::string, std::string>& found, bool all_of_them) {
  std::vector<std::string> names, others;
  bool differ = all_of_them && declared.size() != found.size();
  for (const TensorSpec& spec : declared) {
    names.push_back(spec.name);
    differ |= found.count(spec.name) == 0;
  }
  for (const auto& [name, dtype] : found) others.push_back(name);
  if (differ)
    throw ArtifactError(model + " has the " + side + " " + Listed(others) + ", but config.pbtxt declares " +
                        Listed(names) + ".");
  for (const TensorSpec& spec : declared) {
    if (const std::string& dtype = found.at(spec.name); dtype != NameOf(spec.dtype)) {
      throw ArtifactError(model + " has '" + spec.name + "' as " + dtype + ", but config.pbtxt declares " +
                          NameOf(spec.dtype) + ".");
    }
  }
}

void CheckGiven(const std::vector<Tensor>& given, const std::vector<TensorSpec>& specs) {
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].data == nullptr) throw RequestError("input '" + specs[i].name + "' is missing");
    if (given[i].dtype == Dtype::kString) {
      throw RequestError("input '" + specs[i].name + "' contains strings, which are not supported");
    }
  }
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace rankline
