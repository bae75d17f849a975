//! Tensor names of Hugging Face checkpoints -> those of GGUF.
//!
//! Called for every tensor of a checkpoint. Names this table does not know stay as they are:
//! whoever builds the model refuses them by name.

/// Whole-model tensors.
const WHOLE: [(&str, &str); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];

/// Modules of a layer. Their tensors end in `.weight` or `.bias`.
const LAYER: [(&str, &str); 10] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
];

/// Matrices of an expert, behind `block_sparse_moe.experts.E.`.
const EXPERT: [(&str, &str); 3] = [
    ("w1.weight", "ffn_gate_exps.weight"),
    ("w3.weight", "ffn_up_exps.weight"),
    ("w2.weight", "ffn_down_exps.weight"),
];

/// What a tensor is in GGUF.
#[derive(Debug, PartialEq, Eq)]
pub enum Name {
    /// A tensor of this name.
    Whole(String),
    /// Part `expert` of the tensor of this name.
    Expert {
        /// The name.
        name: String,
        /// The part, from 0.
        expert: u64,
    },
    /// A buffer that follows from the configuration, as old checkpoints hold it.
    Derived,
}

/// What the tensor `name` is in GGUF.
pub fn gguf_name(name: &str) -> Name {
    let whole = WHOLE.iter().find(|(theirs, _)| *theirs == name);
    if let Some((_, ours)) = whole {
        return Name::Whole((*ours).into());
    }
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let Some((layer, rest)) = layer.filter(|(layer, _)| is_number(layer)) else {
        return Name::Whole(name.into());
    };
    if rest == "self_attn.rotary_emb.inv_freq" {
        return Name::Derived;
    }
    let expert = rest.strip_prefix("block_sparse_moe.experts.").and_then(|r| r.split_once('.'));
    if let Some((expert, matrix)) = expert
        && let Some((_, ours)) = EXPERT.iter().find(|(theirs, _)| *theirs == matrix)
        && let Some(expert) = is_number(expert).then(|| expert.parse().ok()).flatten()
    {
        return Name::Expert { name: format!("blk.{layer}.{ours}"), expert };
    }
    let (module, kind) = rest.rsplit_once('.').unwrap_or((rest, ""));
    match LAYER.iter().find(|(theirs, _)| *theirs == module) {
        Some((_, ours)) if ["weight", "bias"].contains(&kind) => {
            Name::Whole(format!("blk.{layer}.{ours}.{kind}"))
        }
        _ => Name::Whole(name.into()),
    }
}

/// Whether `text` is a number as it is printed: two names never become one.
fn is_number(text: &str) -> bool {
    text.parse::<u32>().is_ok_and(|number| number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::{Name, gguf_name};

    #[test]
    fn names_of_every_kind() {
        let whole = [
            ("lm_head.weight", "output.weight"),
            ("model.layers.12.self_attn.q_proj.bias", "blk.12.attn_q.bias"),
            ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"),
            ("model.layers.3.block_sparse_moe.gate.weight", "blk.3.ffn_gate_inp.weight"),
            // Not ours to name.
            ("model.layers.0.mlp.down_proj.scale", "model.layers.0.mlp.down_proj.scale"),
            ("model.layers.00.mlp.up_proj.weight", "model.layers.00.mlp.up_proj.weight"),
            ("model.layers.+1.mlp.up_proj.weight", "model.layers.+1.mlp.up_proj.weight"),
            ("model.layers.5", "model.layers.5"),
            ("transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.weight"),
        ];
        for (theirs, ours) in whole {
            assert_eq!(gguf_name(theirs), Name::Whole(ours.into()), "{theirs}");
        }
        let expert = gguf_name("model.layers.7.block_sparse_moe.experts.5.w2.weight");
        assert_eq!(expert, Name::Expert { name: "blk.7.ffn_down_exps.weight".into(), expert: 5 });
        assert_eq!(gguf_name("model.layers.7.self_attn.rotary_emb.inv_freq"), Name::Derived);
    }
}
