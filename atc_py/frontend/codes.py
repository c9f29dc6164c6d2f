"""The codes of what can be wrong with a model: code → (meaning, explanation).

E1xxxx codes whose concept GE has keep GE's number; E161xx and W162xx are atc-py's own.
"""

from __future__ import annotations

ONNX_FILE = "E13000"
NO_NODE = "E16001"
UNKNOWN_OP = "E16002"
NO_GRAPH = "E16004"
DOMAIN_TWICE = "E16005"
INPUT_SHAPE = "E10002"
OUT_NODE = "E10016"
SHAPE_RANK = "E10049"
GEARS_TWICE = "E10009"
GEARS_BATCH = "E10018"
GEARS_IMAGE = "E10019"
GEARS_FIXED = "E10031"
GEARS_FEW = "E10035"
GEARS_MANY = "E10036"
GEARS_UNEQUAL = "E10037"
GEARS_SIZE = "E10038"
GEARS_EQUAL = "E10039"
GEARS_RANGE = "E10040"
GEARS_OPEN = "E10041"
GEARS_COUNT = "E10045"
NOT_ONNX = "E16101"
TRUNCATED = "E16102"
IR_VERSION = "E16103"
OPSET = "E16104"
TENSOR_DATA = "E16105"
EXTERNAL_MISSING = "E16106"
EXTERNAL_PATH = "E16107"
EXTERNAL_BOUNDS = "E16108"
UNDEFINED = "E16109"
DEFINED_TWICE = "E16110"
CYCLE = "E16111"
ATTRIBUTE = "E16112"
NODE = "E16113"
CONTRADICTION = "E16114"
NESTING = "E16115"
FUNCTION = "E16116"
INPUT_TYPE = "E16117"
INNER = "E19999"
DECLARED_SHAPE = "W16201"
LEGACY_OPSET = "W16202"
DEAD_NODES = "W16203"
FIXED_DIM = "W16204"
LATER_TYPE = "W16205"

CODES: dict[str, tuple[str, str]] = {
    ONNX_FILE: (
        "The model file cannot be read",
        "The path does not exist, is a folder, or the process may not read it. Check the path and its permissions.",
    ),
    INPUT_SHAPE: (
        "An input shape does not fit the model",
        "--input-shape names an input that the model does not have, or gives a size that contradicts a dim which the "
        "model fixes, or gives one symbolic dim two sizes. The message lists the model's inputs with their shapes.",
    ),
    OUT_NODE: (
        "An output asked for does not exist",
        "--out-nodes takes names of ONNX tensors, or 'node name:output index'. The message names the nearest ones.",
    ),
    SHAPE_RANK: (
        "An input shape has the wrong number of dims",
        "--input-shape must give as many dims as the model's input has; -1 leaves a dim as it is.",
    ),
    GEARS_TWICE: (
        "Two lists of gears are given",
        "--dynamic-batch-size, --dynamic-image-size and --dynamic-dims exclude each other. --dynamic-dims takes a "
        "value for every dim that varies.",
    ),
    GEARS_BATCH: (
        "Not only the batch varies",
        "With --dynamic-batch-size only the first dim of an input may vary. Fix the others with --input-shape, or list "
        "all of them with --dynamic-dims.",
    ),
    GEARS_IMAGE: (
        "Not only height and width vary",
        "With --dynamic-image-size both H and W of an input vary (dims 2 and 3, or 1 and 2), and nothing else.",
    ),
    GEARS_FIXED: (
        "No dim varies",
        "Gears are the sizes of dims that the model leaves open and --input-shape does not fix; there are none.",
    ),
    GEARS_FEW: ("There are too few gears", "A list of gears has at least 2. For one set of sizes use --input-shape."),
    GEARS_MANY: (
        "There are too many gears",
        "A list has at most 100 gears, as each is compiled by itself. An OM with symbolic sizes takes any size.",
    ),
    GEARS_UNEQUAL: ("Gears have different numbers of values", "Each gear has one value for each dim that varies."),
    GEARS_SIZE: ("A gear's size is not positive", "Sizes are 1 and more."),
    GEARS_EQUAL: ("Two gears are equal", "Each gear must differ from all others."),
    GEARS_RANGE: (
        "A dim has a range and gears",
        "--input-shape gives a range low~high for a dim whose sizes the list of gears says. Give -1 for it.",
    ),
    GEARS_OPEN: (
        "The gears cannot be one model",
        "Each gear must have all its sizes, and outputs must be of one kind in all of them: a size that depends on "
        "data in one gear may not be known beforehand in another. Without gears, the OM takes any size.",
    ),
    GEARS_COUNT: (
        "A gear has the wrong number of values",
        "A gear of --dynamic-batch-size has one value, of --dynamic-image-size two, of --dynamic-dims one for each dim "
        "that varies; dims to which the model gives one name have one size.",
    ),
    NO_NODE: (
        "The model computes nothing",
        "The graph declares no outputs, so there is nothing to compile. Exporters write such files when the traced "
        "function returns nothing.",
    ),
    UNKNOWN_OP: (
        "An operator is not supported",
        "The operator is neither declared by atc-py, nor a function of the model, nor defined by onnx in terms of "
        "other operators. All such operators of a model are reported at once. Replace them in the exporter, "
        "give the model a local function of that name, or declare the operator yourself: --custom-ops module.py, or "
        "the entry point group 'atc_py.ops' (docs/custom_operators.md).",
    ),
    NO_GRAPH: ("The file holds no graph", "The file is a valid but empty ONNX model; export it again."),
    DOMAIN_TWICE: (
        "A domain is imported in two versions",
        "A model may import each operator set once ('' and 'ai.onnx' are the same one). Remove the wrong entry of "
        "opset_import.",
    ),
    NOT_ONNX: (
        "Not an ONNX file",
        "The file's content is no ONNX model: perhaps a web page saved in its place, a pointer of Git LFS, or another "
        "format.",
    ),
    TRUNCATED: (
        "The ONNX file ends too early",
        "A field of the file says that it is longer than what is left of the file, as after an interrupted download. "
        "Get the file again and compare its size or checksum.",
    ),
    IR_VERSION: (
        "The IR version is not supported",
        "IR versions from 3 up to that of the installed onnx package are read. A newer onnx package reads newer files; "
        "a file older than IR version 3 must be exported again.",
    ),
    OPSET: (
        "The opset is not supported",
        "Operator sets up to the newest of the installed onnx package are supported. Install a newer onnx package, or "
        "export the model with an older opset (onnx.version_converter can convert it).",
    ),
    TENSOR_DATA: (
        "A constant's data is wrong",
        "A tensor's bytes do not fit its element type and dims, or it uses a storage that cannot be read. The file is "
        "damaged or was written wrongly.",
    ),
    EXTERNAL_MISSING: (
        "External data is missing",
        "The model keeps weights in other files beside it, and some are not there. Put them into the model's folder "
        "under the names in the message, or save the model with its data inside.",
    ),
    EXTERNAL_PATH: (
        "External data lies outside the model's folder",
        "Paths of external data must be relative and stay in the folder of the model, symbolic links resolved. This "
        "keeps a foreign model from reading other files of yours.",
    ),
    EXTERNAL_BOUNDS: (
        "External data is out of bounds",
        "Offset and length of an external tensor do not lie within its file, or do not fit the tensor's type and dims. "
        "The data file is truncated or belongs to another model.",
    ),
    UNDEFINED: (
        "A tensor is not defined",
        "A node or an output reads a tensor that no node, input or initializer of its scope makes.",
    ),
    DEFINED_TWICE: (
        "A tensor is defined twice",
        "Each tensor name of a graph must have one producer (static single assignment).",
    ),
    CYCLE: ("The graph has a cycle", "Some nodes need each other's results, so that none of them can run first."),
    ATTRIBUTE: (
        "An attribute is wrong",
        "The attribute is missing, has the wrong type, or is none that the operator has in this opset. The priority "
        "and the stream label of a node are no attributes but entries of its metadata_props: 'priority', a whole "
        "number, and 'stream_label', a name.",
    ),
    NODE: (
        "A node is wrong",
        "The operator cannot take the inputs that the node gives it; the message says what was expected and found. "
        "Nodes that depend on this one are not reported.",
    ),
    CONTRADICTION: (
        "A declared element type is wrong",
        "The model declares another element type for a tensor than its producer makes.",
    ),
    NESTING: (
        "Functions or subgraphs are nested too deep",
        "A function calls itself, directly or through others, or the nesting is deeper than any sensible model's.",
    ),
    FUNCTION: (
        "A function is wrong",
        "A function of the model, or a call of it, is not well formed: missing outputs, attributes or opset imports.",
    ),
    INPUT_TYPE: (
        "An input's type cannot be used",
        "An input of the model has no type, an unknown element type, or is a sparse tensor.",
    ),
    INNER: (
        "Inner error",
        "atc-py failed where it should have given a message of its own. Please report it with the model.",
    ),
    DECLARED_SHAPE: (
        "A declared shape differs from the inferred one",
        "The model declares another shape for a tensor than follows from its inputs; the inferred shape is used. Tools "
        "that change a model often leave such stale shapes behind.",
    ),
    LEGACY_OPSET: (
        "The opset is older than 7",
        "Operators of opsets 1 to 6 are converted to their newest form where that is exact; export with opset 13 or "
        "newer where possible.",
    ),
    DEAD_NODES: ("Nodes that reach no output were left out", "They have no influence on the model's outputs."),
    FIXED_DIM: (
        "A dim asked to be dynamic is fixed in the model",
        "--input-shape gives a range or a symbol for a dim that the model fixes; the model's size is kept. Export the "
        "model with a dynamic axis instead.",
    ),
    LATER_TYPE: (
        "An element type that only a later version of the operator allows",
        "The model's opset has the operator in a version that does not take this type, a later one does: exporters "
        "mix them. It is computed as the later version says. Other tools may refuse the model: export it with a newer "
        "opset.",
    ),
}
