// Memory-mapped files.
#ifndef RANKLINE_MAPPED_FILE_H_
#define RANKLINE_MAPPED_FILE_H_

#include <string>
#include <string_view>

namespace rankline {

// A file that is mapped into memory for the lifetime of this object.
class MappedFile {
 public:
  // Throws ArtifactError if the file cannot be read.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return {data_, size_}; }

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace rankline

#endif  // RANKLINE_MAPPED_FILE_H_
