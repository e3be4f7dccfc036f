// Lets a backend check that it loads the exported files, like `serving/triton/checksums.py`.
#ifndef RANKLINE_TRITON_MANIFEST_H_
#define RANKLINE_TRITON_MANIFEST_H_

#include <string>

namespace rankline {

// Verifies the files of a step against the manifest of its version.
//
// model: the step's folder in the model repository.
// manifest: path of the manifest, relative to the repository.
//
// Throws ArtifactError if a file is missing, damaged or not part of the export, or if there is no manifest.
void CheckStep(const std::string& model, const std::string& manifest);

}  // namespace rankline

#endif  // RANKLINE_TRITON_MANIFEST_H_
