#include "triton/manifest.h"

#include <filesystem>

#include "json.h"
#include "mapped_file.h"
#include "tensor.h"
#include "triton/sha256.h"

namespace rankline {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFormatVersion = 1;

[[noreturn]] void Differs(const fs::path& path, const std::string& how) {
  throw ArtifactError(path.string() + " " + how + ". Make the ensemble again.");
}

std::string DigestOf(const fs::path& path) {
  return fs::file_size(path) == 0 ? Sha256({}) : Sha256(MappedFile(path).bytes());
}

}  // namespace

void CheckStep(const std::string& model, const std::string& manifest) {
  const fs::path folder = fs::path(model).lexically_normal(), repository = folder.parent_path();
  const fs::path path = repository / manifest;
  const std::string own = folder.filename().string() + "/";
  Json files;
  try {
    const Json document = Json::Parse(ReadFile(path));
    if (document["format_version"].integer() != kFormatVersion) throw ArtifactError("it has another format version");
    files = document["files"];
    files.object();
  } catch (const ArtifactError& error) {
    throw ArtifactError(path.string() + " cannot be read (" + error.what() + "). Make the artifact again.");
  }
  for (const auto& [name, record] : files.object()) {
    if (name.compare(0, own.size(), own) != 0) continue;
    const fs::path file = repository / name;
    if (!fs::is_regular_file(fs::symlink_status(file))) Differs(file, "is missing from the ensemble");
    const auto expected = static_cast<uintmax_t>(record["num_bytes"].integer());
    if (const uintmax_t size = fs::file_size(file); size != expected) {
      Differs(file, "has " + std::to_string(size) + " bytes, expected " + std::to_string(expected));
    }
    if (DigestOf(file) != record["sha256"].string()) Differs(file, "does not match its checksum in the manifest");
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_directory() && !entry.is_symlink()) continue;
    const std::string name = entry.path().lexically_relative(repository).generic_string();
    if (files.Get(name).is_null()) {
      throw ArtifactError(entry.path().string() + " is not in the manifest of the ensemble. Remove it.");
    }
  }
}

}  // namespace rankline
