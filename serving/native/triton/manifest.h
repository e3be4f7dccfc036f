// A backend's own check that it loads what was exported, as `serving/triton/checksums.py` makes it.
#ifndef RANKLINE_TRITON_MANIFEST_H_
#define RANKLINE_TRITON_MANIFEST_H_

#include <string>

namespace rankline {

// Compares the files of a step with the manifest of its version.
//
// model: the step's folder in the model repository.
// manifest: path of the manifest from the repository on.
//
// Throws ArtifactError: a file is missing, damaged or not of the export, or there is no manifest.
void CheckStep(const std::string& model, const std::string& manifest);

}  // namespace rankline

#endif  // RANKLINE_TRITON_MANIFEST_H_
