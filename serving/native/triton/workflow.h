// Steps with a compiled workflow at `<version>/plan`.
#ifndef RANKLINE_TRITON_WORKFLOW_H_
#define RANKLINE_TRITON_WORKFLOW_H_

#include <memory>

#include "triton/backend.h"

namespace rankline {

// A step that is the workflow alone. Throws ArtifactError: it is missing or damaged, or does not fit the config.
std::unique_ptr<LoadedModel> LoadWorkflow(const ModelInfo& step);

// Loads a model whose inputs and outputs are as it is told.
using Load = std::unique_ptr<LoadedModel> (*)(const ModelInfo&);

// A step with a model: behind the workflow where there is one, whose outputs are then the model's inputs.
//
// Throws what `load` throws, and ArtifactError as LoadWorkflow does.
std::unique_ptr<LoadedModel> LoadBehindWorkflow(const ModelInfo& step, Load load);

}  // namespace rankline

#endif  // RANKLINE_TRITON_WORKFLOW_H_
