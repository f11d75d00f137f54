// The codecs that kafkajs leaves to packages.
'use strict'

const snappy = require('kafkajs-snappy')
const lz4 = require('lz4js')
const { ZstdCodec } = require('zstd-codec')

const zstd = new Promise((resolve) => ZstdCodec.run((loaded) => resolve(new loaded.Simple())))

module.exports = (types) => ({
  [types.Snappy]: snappy,
  [types.LZ4]: () => ({
    compress: async (encoder) => Buffer.from(lz4.compress(encoder.buffer)),
    decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
  }),
  [types.ZSTD]: () => ({
    compress: async (encoder) => Buffer.from((await zstd).compress(encoder.buffer)),
    decompress: async (buffer) => Buffer.from((await zstd).decompress(buffer)),
  }),
})
