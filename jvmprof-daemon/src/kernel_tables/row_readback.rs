//! Rows read back from the kernel's tables: a walk in user space needs no second copy, nor to read
//! the file again.

use jvmprof_common::rows::Row;
use jvmprof_common::unwind_tables::{CHUNK_ROWS, NO_RULE, PAGE_SHIFT, find_rule};

use super::{CodeTables, RowsKey};
use crate::sampler::SamplerError;
use crate::types::Svma;

impl CodeTables {
    /// Returns the row of the code at `svma`: `Some(None)` if the file has no row
    /// there, `None` if its rows aren't in the tables.
    pub fn row(&self, file: &RowsKey, svma: Svma) -> Option<Option<Row>> {
        let table = self.files.get(file)?;
        let page = (svma.0 >> PAGE_SHIFT).checked_sub(table.first_page);
        let page = page.and_then(|page| u32::try_from(page).ok());
        let Some(page) = page.filter(|page| *page < table.allocation.pages.len() as u32) else {
            return Some(None);
        };
        let read = self.read_row(table.allocation.pages.start + page, svma);
        read.inspect_err(|error| tracing::debug!(%error, "unwind rows can't be read back")).ok()
    }

    fn read_row(&self, page: u32, svma: Svma) -> Result<Option<Row>, SamplerError> {
        let page = self.kernel.page(page)?;
        let mut chunk = None;
        let mut failed = None;
        // The steps of the search come close to each other: most of them read the chunk that the
        // last one did.
        let mut row = |at: u32| {
            let (index, place) = (at / CHUNK_ROWS as u32, at as usize % CHUNK_ROWS);
            let rows = match chunk {
                Some((known, rows)) if known == index => rows,
                _ => self.kernel.chunk(index).map_err(|error| failed = Some(error)).ok()?,
            };
            chunk = Some((index, rows));
            Some(rows[place])
        };
        let number = find_rule(svma.0, page.first, page.rows, &mut row);
        if let Some(error) = failed {
            return Err(error);
        }
        match number {
            None | Some(NO_RULE) => Ok(None),
            Some(number) => Ok(Some(self.kernel.rule(number.into())?.unpack())),
        }
    }
}
