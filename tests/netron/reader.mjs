// Reads OM files with Netron's own modules and prints what it found as JSON.
//
//   node reader.mjs <directory of Netron's modules>   < ["a.om", "b.om"]   > [{"graphs": ...} | {"error": ...}]
//
// Netron decodes a constant only when somebody clicks on it; here all are decoded, so that a wrong offset or size shows.

import * as fs from 'node:fs';
import * as path from 'node:path';
import * as url from 'node:url';

const source = path.resolve(process.argv[2]);
const load = (name) => import(url.pathToFileURL(path.join(source, `${name}.js`)));
const base = await load('base');
const om = await load('om');

const MAX_VALUES = 4096;
const BITS = {
    boolean: 8, int8: 8, uint8: 8, int16: 16, uint16: 16, int32: 32, uint32: 32, int64: 64, uint64: 64,
    float16: 16, bfloat16: 16, float32: 32, float64: 64, 'complex<float32>': 64, 'complex<float64>': 128,
    int4: 4, int2: 2, uint2: 2, uint1: 1
};

// What Netron's application gives to a format's reader, as far as the OM reader asks for it.
class Context {

    constructor(file) {
        this.stream = new base.BinaryStream(fs.readFileSync(file));
    }

    set(type, value) {
        this.type = type;
        this.value = value;
        return type;
    }

    async require(id) {
        return load(path.basename(id));
    }

    async metadata(name) {
        const types = JSON.parse(fs.readFileSync(path.join(source, name), 'utf-8'));
        const known = new Map(types.map((type) => [type.name, type]));
        return { type: (type) => known.get(type) || { name: type } };
    }
}

const plain = (value) => {
    if (typeof value === 'bigint') {
        return Number.isSafeInteger(Number(value)) ? Number(value) : value.toString();
    }
    if (typeof value === 'number' && !Number.isFinite(value)) {
        return value.toString();
    }
    if (Array.isArray(value)) {
        return value.map(plain);
    }
    if (value instanceof base.Complex) {
        return [plain(value.real), plain(value.imaginary)];
    }
    return value;
};

const typeOf = (type) => type && {
    dtype: type.dataType,
    shape: type.shape.dimensions.map(plain),
    layout: type.denotation || ''
};

const constant = (tensor) => {
    const result = { ...typeOf(tensor.type), nbytes: tensor.values ? tensor.values.length : null, values: null };
    const count = result.shape.reduce((a, b) => a * b, 1);
    if (tensor.values && result.dtype in BITS) {
        const expected = Math.ceil(count * BITS[result.dtype] / 8);
        if (expected !== tensor.values.length) {
            throw new Error(`Constant of ${result.dtype}[${result.shape}] has ${tensor.values.length} bytes, not ${expected}.`);
        }
        const decoder = new base.Tensor(tensor);
        if (count <= MAX_VALUES) {
            result.values = count === 0 ? [] : plain(decoder.value);
        } else {
            decoder.toString();
        }
    }
    return result;
};

const attribute = (value) => {
    if (value instanceof Uint8Array) {
        return Array.from(value);
    }
    if (value && value.nodes) {
        return { graph: value.name };
    }
    if (value && value.type && value.category) {
        return { tensor: typeOf(value.type) };
    }
    if (value && typeof value === 'object' && !Array.isArray(value)) {
        return {};
    }
    return plain(value);
};

const argument = ({ name, value }) => ({
    name,
    values: value.map((item) => ({
        name: item.name,
        type: typeOf(item.type),
        initializer: item.initializer ? constant(item.initializer) : null
    }))
});

const read = async (file) => {
    const context = new Context(file);
    const factory = new om.ModelFactory();
    if (!await factory.match(context)) {
        throw new Error('Netron does not take the file for an OM.');
    }
    const model = await factory.open(context);
    const graphs = model.modules.map((graph) => ({
        name: graph.name,
        nodes: graph.nodes.map((node) => ({
            name: node.name,
            type: node.type.name,
            inputs: node.inputs.map(argument),
            outputs: node.outputs.map(argument),
            attributes: Object.fromEntries(node.attributes.map((item) => [item.name, attribute(item.value)]))
        }))
    }));
    return { format: model.format, graphs };
};

const results = [];
for (const file of JSON.parse(fs.readFileSync(0, 'utf-8'))) {
    try {
        results.push(await read(file));
    } catch (error) {
        results.push({ error: error.message });
    }
}
process.stdout.write(JSON.stringify(results));
