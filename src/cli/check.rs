//! `check`: proves the plan again and reads the whole image, every checksum of it.

use super::arguments::Options;
use super::boot::{Session, boot};
use super::fault::Fault;
use super::run::boot_options;
use crate::image::SectionKind;
use crate::image::geometry::BLOCK_BYTES;
use crate::model::ModelError;
use crate::plan::{Plan, bytes};
use crate::sys::Output;
use core::fmt::Write;

/// Boots `plan` (which checks plan, header and resident sections), then reads all the rest.
pub fn check(plan: &Plan, options: &Options) -> Result<(), Fault> {
    let boot_options = boot_options(plan, options)?;
    boot(plan, &boot_options, |session| {
        order(session, options)?;
        session.model.verify_embeddings()?;
        let layers = plan.inputs.shape.layers as u16;
        session.model.workshop.verify(layers).map_err(ModelError::from)?;
        let mut out = Output::stdout();
        let (read, slots) = (session.header.file_bytes(), plan.slot_count);
        let written = if options.json {
            writeln!(
                out,
                "{{\"ok\":true,\"image_bytes\":{read},\"neurons\":{},\"slots\":{slots}}}",
                plan.inputs.shape.neurons()
            )
        } else {
            writeln!(
                out,
                "the plan holds, and every checksum of the image ({}, {} neurons) does too",
                bytes(read),
                plan.inputs.shape.neurons()
            )
        };
        written.expect("an output takes any text");
        out.flush().map_err(Fault::Output)
    })
}

/// The section that boot does not load.
fn order(session: &mut Session<'_>, options: &Options) -> Result<(), Fault> {
    let path = options.image;
    let section = session.header.section(SectionKind::Order);
    let (kernels, mut crc) = (session.model.kernels(), 0);
    for offset in (0..section.bytes).step_by(BLOCK_BYTES as usize) {
        let block = session
            .model
            .read_block(section.offset + offset)
            .map_err(|error| Fault::ImageRead { path, error })?;
        crc = kernels.crc32c(crc, block);
    }
    if crc != section.crc {
        return Err(Fault::ImageSection { path, section: SectionKind::Order.name() });
    }
    Ok(())
}
