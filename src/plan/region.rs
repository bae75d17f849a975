//! Regions: named byte ranges of the arena, each with a lifetime within a token.

/// Every region of the arena, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionId {
    /// The image's resident section.
    Resident,
    /// The image's tokenizer section.
    Tokenizer,
    /// cos, sin f32[context][head_dim / 2][2].
    Rope,
    /// Cached keys, [layers][kv_heads][context][head_dim].
    Keys,
    /// Cached values, as the keys.
    Values,
    /// Neuron -> slot, u32[layers][experts][ff].
    Table,
    /// Slot -> neuron, u32[slots].
    Owners,
    /// Neuron records without tags.
    Slots,
    /// One buffer a read in flight.
    Staging,
    /// Requests, one a read in flight.
    Requests,
    /// State words of the staging buffers.
    StagingStates,
    /// Landing place of an embedding row.
    EmbeddingRow,
    /// Token ids of the conversation, u32[context].
    Tokens,
    /// Stacks of readers and workers.
    Stacks,
    /// Residual stream, f32[prefill][hidden]: a line for each token of a chunk.
    Residual,
    /// Normalised input of a matrix, f32[prefill] padded.
    Input,
    /// The same as i8 codes, [prefill].
    InputCodes,
    /// The same: scales, one a group, [prefill].
    InputScales,
    /// Query heads, new key heads, new value heads, f32[prefill][qkv_dim].
    Qkv,
    /// Attention output, f32[prefill][query_dim] padded.
    Heads,
    /// Output of a matrix before it joins the residual, f32[prefill][hidden].
    Update,
    /// Down accumulators of every thread: i32, i32 and i64 [hidden] each.
    Accumulators,
    /// Router logits, f32[experts].
    Router,
    /// Experts of every token of a chunk, [prefill][experts_used].
    Choices,
    /// Down sums of every token of a chunk, i64[prefill][hidden] padded.
    BatchSums,
    /// Gates, ups and multipliers of a block of neurons, for every thread's share of a chunk.
    BatchTiles,
    /// f32[vocab].
    Logits,
    /// Sampler candidates, 8 bytes each, [vocab].
    Candidates,
    /// Tokenizer scratch for one prompt.
    Encode,
    /// Text of a turn of a chat, as it is read and written into its template.
    Turn,
}

/// Number of regions.
pub const REGIONS: usize = RegionId::Turn as usize + 1;

impl RegionId {
    /// Every region, by its number.
    pub const ALL: [RegionId; REGIONS] = [
        RegionId::Resident,
        RegionId::Tokenizer,
        RegionId::Rope,
        RegionId::Keys,
        RegionId::Values,
        RegionId::Table,
        RegionId::Owners,
        RegionId::Slots,
        RegionId::Staging,
        RegionId::Requests,
        RegionId::StagingStates,
        RegionId::EmbeddingRow,
        RegionId::Tokens,
        RegionId::Stacks,
        RegionId::Residual,
        RegionId::Input,
        RegionId::InputCodes,
        RegionId::InputScales,
        RegionId::Qkv,
        RegionId::Heads,
        RegionId::Update,
        RegionId::Accumulators,
        RegionId::Router,
        RegionId::Choices,
        RegionId::BatchSums,
        RegionId::BatchTiles,
        RegionId::Logits,
        RegionId::Candidates,
        RegionId::Encode,
        RegionId::Turn,
    ];

    /// Name in reports and messages.
    pub const fn name(self) -> &'static str {
        match self {
            RegionId::Resident => "resident",
            RegionId::Tokenizer => "tokenizer",
            RegionId::Rope => "rope",
            RegionId::Keys => "keys",
            RegionId::Values => "values",
            RegionId::Table => "table",
            RegionId::Owners => "owners",
            RegionId::Slots => "slots",
            RegionId::Staging => "staging",
            RegionId::Requests => "requests",
            RegionId::StagingStates => "staging_states",
            RegionId::EmbeddingRow => "embedding_row",
            RegionId::Tokens => "tokens",
            RegionId::Stacks => "stacks",
            RegionId::Residual => "residual",
            RegionId::Input => "input",
            RegionId::InputCodes => "input_codes",
            RegionId::InputScales => "input_scales",
            RegionId::Qkv => "qkv",
            RegionId::Heads => "heads",
            RegionId::Update => "update",
            RegionId::Accumulators => "accumulators",
            RegionId::Router => "router",
            RegionId::Choices => "choices",
            RegionId::BatchSums => "batch_sums",
            RegionId::BatchTiles => "batch_tiles",
            RegionId::Logits => "logits",
            RegionId::Candidates => "candidates",
            RegionId::Encode => "encode",
            RegionId::Turn => "turn",
        }
    }

    /// When the region holds something.
    pub const fn life(self) -> Life {
        match self {
            RegionId::Encode | RegionId::Turn => Life::During(Stage::Encode, Stage::Encode),
            RegionId::Residual => Life::During(Stage::Attention, Stage::Head),
            RegionId::Input | RegionId::InputCodes | RegionId::InputScales => {
                Life::During(Stage::Attention, Stage::Head)
            }
            RegionId::Qkv | RegionId::Heads => Life::During(Stage::Attention, Stage::Attention),
            RegionId::Update => Life::During(Stage::Attention, Stage::Ffn),
            RegionId::Accumulators
            | RegionId::Router
            | RegionId::Choices
            | RegionId::BatchSums
            | RegionId::BatchTiles => Life::During(Stage::Ffn, Stage::Ffn),
            RegionId::Logits => Life::During(Stage::Head, Stage::Sample),
            RegionId::Candidates => Life::During(Stage::Sample, Stage::Sample),
            _ => Life::Always,
        }
    }
}

/// Stages of a token, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Prompt to token ids.
    Encode,
    /// Attention of a layer.
    Attention,
    /// Feed-forward network of a layer.
    Ffn,
    /// Final norm and output head.
    Head,
    /// Choice of the next token.
    Sample,
}

impl Stage {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Encode => "encode",
            Stage::Attention => "attention",
            Stage::Ffn => "ffn",
            Stage::Head => "head",
            Stage::Sample => "sample",
        }
    }
}

/// When a region holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// From boot to exit.
    Always,
    /// From the first stage to the last, both included, of every token.
    During(Stage, Stage),
}

impl Life {
    /// Whether both hold something at the same time.
    pub const fn meets(self, other: Life) -> bool {
        match (self, other) {
            (Life::During(a, b), Life::During(c, d)) => {
                a as u32 <= d as u32 && c as u32 <= b as u32
            }
            _ => true,
        }
    }
}

/// A named byte range of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Which one.
    pub id: RegionId,
    /// First byte, from the start of the arena.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// The offset is a multiple of this.
    pub align: u64,
}

impl Region {
    /// First byte behind the region.
    pub const fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}
